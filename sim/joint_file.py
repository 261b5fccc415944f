"""Files of the joint policy: JSON with the adaptive policy that it stands on, chances of branches, and prices."""

from dataclasses import asdict
from pathlib import Path

from recguide.sim.adaptive import policy_from
from recguide.sim.chances import chances_from
from recguide.sim.joint import Joint
from recguide.sim.policyfiles import FORMAT, read_document
from recguide.traces.documents import write_json
from recguide.traces.errors import InputError

KIND = "joint"


def write_joint(policy: Joint, path: Path) -> None:
    """Write a file that :func:`read_joint` reads; it appears whole or not at all."""
    document = {
        "recguide_policy": FORMAT,
        "kind": KIND,
        "adaptive": asdict(policy.fitted),
        "chances": asdict(policy.chances),
        "rho": {str(load): rho for load, rho in policy.rho.items()},
    }
    write_json(path, document)


def read_joint(path: Path) -> Joint:
    """Read one; InputError names the file, the field, what was found and what is allowed."""
    document = read_document(path, KIND, "fit --joint")
    try:
        fitted = policy_from(path, document["adaptive"])
        rho = {int(load): float(value) for load, value in document["rho"].items()}
        if not rho or not all(load >= 1 and 0 <= value < float("inf") for load, value in rho.items()):
            raise InputError(f"rho: found {document['rho']}, allowed: numbers of at least 0 by concurrency")
        return Joint(fitted, chances_from(document["chances"]), rho)
    except KeyError as error:
        raise InputError(f"{path}: {error.args[0]}: missing") from None
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: of another shape than a policy: {error}") from None

"""Opening a page in headless Chromium: its document after the scripts ran, and what the console said."""

import os
import re
import shutil
import subprocess
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=20000",
    "--dump-dom",
]


def open_page(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The document as it stands in the end, and the messages of the console; ``profile`` is a fresh folder."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", page.resolve().as_uri()]
    home = os.environ | {"HOME": str(profile), "XDG_CONFIG_HOME": str(profile), "XDG_CACHE_HOME": str(profile)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=home)
    return done.stdout, re.findall(r"^.*(?:CONSOLE|Uncaught).*$", done.stderr, flags=re.MULTILINE)

"""Writes sim/profiles/nld-8b-b200.csv and nld-14b-b200.csv from published figures: python scripts/b200_profiles.py"""

from recguide.sim.costs import SHIPPED, write_profile
from recguide.sim.paper.b200 import header_of, profile_of
from recguide.sim.paper.published import MODELS

if __name__ == "__main__":
    for model in MODELS:
        profile = profile_of(model)
        write_profile(SHIPPED / profile.path, header_of(model), profile.rows)

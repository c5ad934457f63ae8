"""Names from a generator of the module."""

from faker import Faker
from faker.exceptions import UniquenessException

NAMES = Faker()
SEEDED = Faker()
SEEDED.seed_instance(7)


def work():
    return [SEEDED.name(), SEEDED.address(), SEEDED.date("%Y")]


def random():
    return [NAMES.sha256(), NAMES.uuid4()]


def fail():
    raise UniquenessException(f"only {len({NAMES.unique.random_digit() for _ in range(10)})} digits")

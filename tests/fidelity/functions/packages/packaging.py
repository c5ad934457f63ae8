"""Versions and requirements."""

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ALLOWED = SpecifierSet(">=1.2,<2")


def work():
    return [Version("1.10") > Version("1.9"), "1.5" in ALLOWED, Requirement("a[b]>=1").name, default_environment()["os_name"]]


def fail():
    Version("one")

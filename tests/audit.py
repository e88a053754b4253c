"""Licences and sources of everything that is linked or installed, and known vulnerabilities where a database can be reached.

`make audit`. Licences and sources need no network; what could not be checked is said, and is not a failure.
"""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]

REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"

COPYLEFT = re.compile(r"\bA?GPL|General Public License", re.IGNORECASE)
LESSER = re.compile(r"\bLGPL|Lesser General Public", re.IGNORECASE)


def tokens_of(expression):
    """The words of an SPDX expression; older crates write / for OR."""
    return re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))


def is_allowed(expression, allowed):
    """Whether some choice of the licences that an SPDX expression offers is allowed as a whole."""
    tokens = tokens_of(expression)

    def alternatives():
        found = conjunction()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            # Both sides are read, whatever the first one is.
            found = conjunction() or found
        return found

    def conjunction():
        found = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            found = one() and found
        return found

    def one():
        name = tokens.pop(0)
        if name == "(":
            found = alternatives()
            tokens.pop(0)
            return found
        if tokens and tokens[0] == "WITH":
            name = " ".join([name, tokens.pop(0), tokens.pop(0)])
        return name in allowed

    return alternatives()


def crates():
    """All crates by `cargo metadata`, optional ones included; None where they are not all at hand."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]
    for network in (["--offline"], []):
        found = subprocess.run([*command, *network], cwd=ROOT, capture_output=True, text=True)
        if found.returncode == 0:
            return json.loads(found.stdout)["packages"]
    return None


def check_crates(packages, allowed):
    """List the faults in the licences and sources of crates."""
    wrong = []
    for package in packages:
        name = f"{package['name']} {package['version']}"
        if package["source"] not in (None, REGISTRY):
            wrong.append(f"{name} comes from {package['source']}")
        if package["source"] is not None and not package["license"]:
            wrong.append(f"{name} names no licence")
        elif package["license"] and not is_allowed(package["license"], allowed):
            wrong.append(f"{name} is under {package['license']}, which deny.toml does not allow")
    return wrong


def check_packages():
    """List the faults in the licences of the wheel's requirements: numpy, and those of its extras."""
    own = importlib.metadata.metadata("tensorquery").get_all("Requires-Dist") or []
    wrong = []
    for requirement in own:
        name = re.match(r"[\w.-]+", requirement)[0]
        try:
            found = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            print(f"audit: {name} is not installed; its licence was not checked")
            continue
        text = " ".join(
            [
                found.get("License-Expression") or (found.get("License") or "")[:200],
                *(found.get_all("Classifier") or []),
            ]
        )
        if COPYLEFT.search(LESSER.sub("", text)):
            wrong.append(
                f"{name} is under a licence that asks the same of whoever links it: {text[:120]}"
            )
    return wrong


TOOLS = {
    "known vulnerabilities of crates": ["cargo", "deny", "check"],
    "known vulnerabilities of Python packages": [
        sys.executable,
        "-m",
        "pip_audit",
        "--requirement",
        "requirements-dev.txt",
    ],
}

UNREACHABLE = re.compile(
    r"failed to (fetch|open|acquire|load)[^\n]*(advisor|database|repository)|ConnectionError|Max retries|Could not resolve|"
    r"network|timed? ?out|No module named pip_audit|no such (sub)?command",
    re.IGNORECASE,
)


def check_by(tool):
    """List the faults that a tool finds; None if it is not installed, or reaches no database."""
    if shutil.which(tool[0]) is None:
        return None
    found = subprocess.run(tool, cwd=ROOT, capture_output=True, text=True)
    said = found.stdout + found.stderr
    if found.returncode == 0:
        return []
    return None if UNREACHABLE.search(said) else [said[-3000:]]


def main():
    """Exit with 1 where something is wrong."""
    allowed = set(tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"])
    packages = crates()
    checks = {
        "licences and sources of crates": None
        if packages is None
        else check_crates(packages, allowed)
    }
    checks["licences of Python packages"] = check_packages()
    checks |= {name: check_by(tool) for name, tool in TOOLS.items()}
    for name, wrong in checks.items():
        if wrong is None:
            print(f"audit: NOT CHECKED: {name} (the tool is missing, or reaches no database)")
        else:
            print(f"audit: {name}: {len(wrong) or 'nothing'} wrong", *wrong, sep="\n  ")
    print(f"audit: {len(packages or [])} crates")
    sys.exit(any(checks.values()))


if __name__ == "__main__":
    main()

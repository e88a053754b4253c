"""The release workflow tries the files that it publishes on the versions that the package claims to support, and
keeps no secret."""

import re

import yaml

import pages

WORKFLOW = yaml.safe_load(pages.text_of(".github/workflows/release.yml"))
JOBS = WORKFLOW["jobs"]


def needs(job):
    """The jobs that a job waits for, and those that these wait for."""
    own = JOBS[job].get("needs", [])
    own = [own] if isinstance(own, str) else own
    return set(own).union(*map(needs, own))


def test_what_is_published_was_tried():
    assert needs("publish") == set(JOBS) - {"publish"}
    wheels = {each["name"] for each in JOBS["wheels"]["strategy"]["matrix"]["include"]}
    tried = JOBS["try"]["strategy"]["matrix"]
    assert set(tried["name"]) == {each["name"] for each in tried["include"]} == wheels
    assert (
        min(tried["python"])
        == re.search(r'requires-python = ">=([\d.]+)"', pages.text_of("pyproject.toml"))[1]
    )
    assert any("tests/wheel" in step.get("run", "") for step in JOBS["try"]["steps"])


def test_only_publishing_has_rights_and_nothing_has_a_password():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    for name, job in JOBS.items():
        assert job.get("permissions") == ({"id-token": "write"} if name == "publish" else None)
    text = pages.text_of(".github/workflows/release.yml")
    assert "secrets." not in text
    assert not re.search(r"https?://", text)


def test_only_a_tag_publishes():
    assert JOBS["publish"]["if"] == "github.ref_type == 'tag'"
    # `on` is a boolean of YAML 1.1.
    assert WORKFLOW[True]["push"] == {"tags": ["v*"]}


def test_what_it_installs_is_what_was_tested():
    [line] = [
        line
        for step in JOBS["try"]["steps"]
        for line in step.get("run", "").splitlines()
        if "pip install" in line
    ]
    wanted = re.findall(r'"([^"]+)"', line)
    assert len(wanted) == 3
    tested = pages.text_of("requirements-demo.txt") + pages.text_of("requirements-dev.txt")
    assert set(wanted) <= set(tested.splitlines())

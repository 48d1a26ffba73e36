"""The schema of the configuration says what the configuration's reader does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tomli

from precision_lint import config, schema
from precision_lint.config import ConfigError, Place, from_table

ROOT = Path(__file__).parent.parent
FILE = ROOT / "precision-lint.schema.json"


def accepted(table: Any) -> bool:
    return jsonschema.Draft7Validator(schema.generate()).is_valid(table)


def test_the_schema_in_the_repository_is_the_present_one() -> None:
    assert json.loads(FILE.read_text("utf8")) == schema.generate(), "run `make schema`"


def test_it_is_a_schema_and_describes_every_key() -> None:
    jsonschema.Draft7Validator.check_schema(schema.generate())
    assert list(schema.generate()["properties"]) == list(config.KEYS) == list(schema.DESCRIPTIONS)


def test_the_page_shows_every_key_and_each_is_accepted() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text("utf8")
    (block,) = re.findall(r"```toml\n([^\n]*# in precision-lint.toml.*?)```", text, re.DOTALL)
    table = tomli.loads(block)["tool"]["precision-lint"]
    assert accepted(table)
    assert set(table) == set(config.KEYS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        'select = ["ALL"]',
        'select = ["MP3", "eps-before-log"]\nignore = ["MP301"]',
        'per-file-ignores = { "tests/**" = ["MP5"], "!a" = [] }',
        'confidence = "certain"\nfail-on = "info"\noutput-format = "sarif"',
        'torch-version = "2.4"\njobs = 4\ncache-dir = "x"\nbaseline = "b.json"',
        "selct = []",
        'select = "MP301"',
        'select = ["MP399"]',
        'ignore = ["E501"]',
        "exclude = [1]",
        'force-exclude = "yes"',
        "jobs = 0",
        "jobs = true",
        'confidence = "sure"',
        'fail-on = "certain"',
        'output-format = "xml"',
        'cache-dir = ""',
        'cache-dir = "a\\u0000"',
        "baseline = 1",
        'torch-version = "2"',
        "torch-version = 2.4",
        "extend = []",
        'per-file-ignores = ["MP5"]',
        'per-file-ignores = { "tests/**" = "MP5" }',
        'per-file-ignores = { "tests/**" = ["MQ5"] }',
    ],
)
def test_it_accepts_what_is_read(tmp_path: Path, text: str) -> None:
    table = tomli.loads(text)
    try:
        from_table(table, Place(tmp_path / "precision-lint.toml"), tmp_path)
        read = True
    except ConfigError:
        read = False
    assert accepted(table) is read


def test_defaults_are_those_of_the_settings() -> None:
    defaults = {
        key: shape["default"]
        for key, shape in schema.generate()["properties"].items()
        if "default" in shape
    }
    assert defaults["confidence"] == "likely"
    assert defaults["respect-gitignore"] is True
    assert accepted(defaults)
    here = Path.cwd()
    assert from_table(defaults, Place(here / "f"), here) == from_table(
        {"select": ["ALL"]}, Place(here / "f"), here
    )

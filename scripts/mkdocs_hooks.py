"""Pages of the documentation site that are made when it is built: one for each rule.

MkDocs calls the functions (`hooks` in mkdocs.yml).  A rule is addressed by its code, which stays.
"""

from __future__ import annotations

import posixpath
import re
import textwrap
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from precision_lint import catalogue, registry
from precision_lint.cli import cli

LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(```.*?```|`[^`]*`)", re.DOTALL)
FOLDED = ("It stays silent", "It is only `possible`", "How sure it is")
"""How paragraphs begin that say where a rule is silent or unsure; their lists belong to them."""
PAGES = {"rules/README.md": "rules/index.md", "precision_lint/cli.py": "cli.md"}
"""Pages that are made, by the files of the repository that links name."""
RULE = re.compile(r"rules/(mp\d{3})_\w+\.py")
MENTION = re.compile(r"\bMP\d{3}\b")
CODES = [
    *registry.ENGINE_CODES,
    *(code for code, rule in registry.rules().items() if registry.ships(rule)),
]


def address(code: str) -> str:
    """A rule's page, from the root of the documentation."""
    return f"rules/{code.lower()}.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the rules into the navigation, by group."""
    groups: list[Any] = ["rules/index.md"]
    for prefix, title in catalogue.GROUPS.items():
        pages = [
            {f"{code} {catalogue.described(code)['name']}": address(code)}
            for code in CODES
            if code.startswith(prefix)
        ]
        if pages:
            groups.append({f"{prefix}: {title}": pages})
    config["nav"] = [{"Rules": groups} if "Rules" in entry else entry for entry in config["nav"]]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make the page of each rule, and the list of all."""
    listed = re.sub(
        r"^\| (MP\d{3}) \|",
        lambda match: f"| [{match[1]}]({match[1].lower()}.md) |",
        catalogue.markdown(CODES),
        flags=re.MULTILINE,
    )
    files.append(File.generated(config, "rules/index.md", content=f"{listed}\n"))
    for code in CODES:
        files.append(File.generated(config, address(code), content=page(code)))
    files.append(File.generated(config, "cli.md", content=options()))
    return files


def options() -> str:
    """The page of the command line: the help of each command, as the terminal shows it."""
    parts = ["# Command line", _help(cli, "precision-lint")]
    for name, command in sorted(cli.commands.items()):
        parts += [f"## {name}", _help(command, f"precision-lint {name}")]
        if isinstance(command, click.Group):
            for inner, one in sorted(command.commands.items()):
                parts += [f"### {name} {inner}", _help(one, f"precision-lint {name} {inner}")]
    return "\n\n".join(parts) + "\n"


def _help(command: click.Command, name: str) -> str:
    names = cli.context_settings["help_option_names"]
    context = click.Context(command, info_name=name, terminal_width=100, help_option_names=names)
    return f"```text\n{command.get_help(context)}\n```"


def page(code: str) -> str:
    """A rule's documentation under a title that begins with its code."""
    rule = catalogue.described(code)
    text = catalogue.explanation(rule)
    _, _, rest = text.partition("\n\n")
    rest = folded(rest)
    parts = CODE.split(rest)
    parts[::2] = [MENTION.sub(lambda match: _linked(match[0], code), part) for part in parts[::2]]
    return f"# {code} {rule['name']}\n\n{''.join(parts)}\n"


def folded(text: str) -> str:
    """The documentation of a rule with its exceptions behind a line to click on."""
    head, title, rest = text.partition("## What it flags\n\n")
    section, following, tail = rest.partition("\n\n## ")
    shown: list[str] = []
    hidden: list[str] = []
    into = shown
    for block in section.split("\n\n"):
        if not block.startswith("- "):
            into = hidden if block.startswith(FOLDED) else shown
        into.append(block)
    if hidden:
        inner = textwrap.indent("\n\n".join(hidden), "    ")
        shown.append(f'??? note "Where it is silent, and how sure it is"\n\n{inner}')
    return head + title + "\n\n".join(shown) + following + tail


def _linked(mentioned: str, code: str) -> str:
    known = mentioned in CODES and mentioned != code
    return f"[{mentioned}]({mentioned.lower()}.md)" if known else mentioned


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to the pages that are made; name other files of the repository that are no pages,
    and link to them if it has an address."""
    here = posixpath.dirname(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, match[2]))
        if not target.startswith("../"):
            return match[0]
        path = target.removeprefix("../")
        made = RULE.sub(r"rules/\1.md", PAGES.get(path, path))
        if made != path:
            return f"[{match[1]}]({posixpath.relpath(made, here or '.')}{match[3] or ''})"
        if not (Path(config["docs_dir"]).parent / path).exists():
            return match[0]  # MkDocs says what is wrong with it
        if config.repo_url:
            return f"[{match[1]}]({config.repo_url.rstrip('/')}/blob/HEAD/{path})"
        return match[1] if match[1].startswith("`") else f"`{path}`"

    return LINK.sub(replace, markdown)

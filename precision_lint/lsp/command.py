"""``precision-lint lsp``: the language server, if what it needs is installed."""

from __future__ import annotations

import importlib.util
import sys

import click

from precision_lint import shell


@click.command("lsp")
@click.option("--stdio", is_flag=True, help="Talk over standard input and output; always so.")
def command(stdio: bool) -> int:
    """Serve editors: diagnostics, hover and code actions.

    The editor starts this and talks to it over standard input and output.
    """
    if importlib.util.find_spec("pygls") is None:
        shell.echo("lsp needs pygls; pip install 'precision-lint[lsp]'", sys.stderr)
        return 2
    from precision_lint.lsp.server import serve

    serve()
    return 0

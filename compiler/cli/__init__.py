"""The command line. Exit 0: fine; 1: a check failed; 2: bad input, or a fault of our own."""

from __future__ import annotations

import sys
import traceback

import click

from ..lang.diagnostic import CheckFailed, Diagnostics, Fault, diagnostic
from ..runtime.errors import ArtifactError
from . import artifacts, checkpoints, cost, diff, migrate, running, specs
from .common import FORM, Failed, cli, report, usage

__all__ = ["artifacts", "checkpoints", "cli", "cost", "diff", "main", "migrate", "running", "specs"]


def main(arguments: list[str] | None = None) -> None:
    """Entry point: maps every kind of failure to its exit code."""
    FORM[0] = "text"
    try:
        cli.main(arguments, prog_name="nnspec", standalone_mode=False)
        code = 0
    except Failed:
        code = 1
    except Diagnostics as found:
        report(found.items)
        code = 1 if isinstance(found, CheckFailed) else 2
    except Fault as found:
        report([found.diagnostic])
        code = 2
    except click.exceptions.Abort:
        code = 130
    except click.exceptions.NoArgsIsHelpError as wrong:
        print(wrong.ctx.get_help() if wrong.ctx else "")
        code = 2
    except click.ClickException as wrong:
        report([usage(wrong)])
        code = 2
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    except ArtifactError as found:
        report([diagnostic(i.code, i.headline, note=i.notes, help=i.helps) for i in found.items])
        code = 2
    except Exception:
        if arguments is not None:                   # called by a program, which sees the fault itself
            raise
        traceback.print_exc()
        print("error: this is a fault of nnspec, not of what it was given; please report it with the lines above", file=sys.stderr)
        code = 2                                    # 1 says that a check failed
    sys.exit(code)

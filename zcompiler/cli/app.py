"""The `zinf` command with all its commands, which are shown in the order in which they are imported."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape

# isort: off
from zcompiler.cli import see  # noqa: F401
from zcompiler.cli import on_machine  # noqa: F401
from zcompiler.cli import on_schedules  # noqa: F401

# isort: on
from zcompiler.cli.base import app
from zcompiler.errors import BadInput, ZinfError
from zcompiler.options import OptionError

__all__ = ["app", "main"]


def main() -> None:
    """Run the command. Errors that the user can act on come without traceback: status 2 for a bad option or
    file, else 1."""
    try:
        app()
    except (ZinfError, OSError) as error:
        Console(stderr=True).print(escape(str(error)), style="red", highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, (OptionError, BadInput)) else 1)


if __name__ == "__main__":
    main()

"""The command line (extra ``cli``). Its parts are imported when it runs, so that it can say what is missing."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run ``coatcheck`` with the arguments of this process; the entry point of the console script.

    Exits with 1, and one sentence on what to install, where the extra ``cli`` is missing.
    """
    try:
        from coatcheck.cli.main import app

        app(prog_name="coatcheck")
    except KeyboardInterrupt:  # before a command could take care of it
        sys.exit(130)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "coatcheck"} or missing in sys.stdlib_module_names:
            raise
        sys.exit(
            f"coatcheck: the command line is an optional part and needs {missing}, which is not installed.\n"
            "Install it with: pip install 'coatcheck[cli]'"
        )

"""``python -m coatcheck`` is the program ``coatcheck``."""

from __future__ import annotations

from coatcheck.cli import main

if __name__ == "__main__":
    main()

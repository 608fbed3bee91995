"""Entry of `env/setup`: standard library only, run by any Python from 3.11 on."""

from __future__ import annotations

import sys

from sciml_env.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`sciml ...`. Thin: every command parses, imports what it needs, and hands on.

Exit codes: 0 ok, 1 failed run, 2 wrong use or bad input, 3 environment not fit, 124 timed out, 130 interrupted,
143 cancelled. Messages go to stderr without a traceback; SCIML_DEBUG=1 shows it.

    `app`      the program: commands by name, errors to exit codes
    `shared`   output as text or JSON
    one module a command group: batch, config, data, doctor, jupyter, models, pool, runs, train
"""

from __future__ import annotations

from sciml_kernel.cli.app import main

__all__ = ["main"]

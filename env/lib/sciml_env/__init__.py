"""What `env/setup` does, in the order of the work.

options    the command line, and what an earlier set-up of the same venv chose
pythons    which interpreter, and whether it can make a venv
locks      reading env/lock/*.txt
tools      compiler, disk, cache directory: everything that is checked before a download
installer  uv or pip, whichever there is; retries
mpi        the MPI that Horovod is built with: the wheel's or the site's
horovod    sdist, patch, build, wheel cache
existing   a conda or module environment as the target (`--python`)
record     stamp and environment.json
main       the story
say        printing steps, running commands with a log and a sign of life

Standard library only: it runs before anything is installed.
"""

"""python -m foresee.cli: the command line."""

from foresee.cli.app import main

main()

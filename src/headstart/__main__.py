"""`python -m headstart`."""

from headstart.cli.main import main

main()

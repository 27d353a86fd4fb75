"""``python -m elastane``: the ``elastane`` command."""

from elastane.cli.main import main

if __name__ == "__main__":
    main()

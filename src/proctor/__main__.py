"""`python -m proctor`: the same as the console script."""

from proctor.cli import main

if __name__ == "__main__":
    main()

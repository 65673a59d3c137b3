"""`python -m fuzz`."""

from fuzz.runner import main

raise SystemExit(main())

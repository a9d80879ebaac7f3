"""`python -m corellm.cli`."""

import sys

from corellm.cli import main

sys.exit(main())

"""`python -m common.data`: fetch a data set ahead of a job. It is `common.images` under its documented name."""

import sys

from common.images import main
from common.output import outlive_readers

if __name__ == "__main__":
    outlive_readers()
    sys.exit(main())

"""Takes longer to import than a test waits."""

import time

time.sleep(300)

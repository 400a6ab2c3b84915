"""Fetch MNIST into data/, as `python -m mpitune data` does: `python mnist.py [--data DIR]`."""

from common.data import main

raise SystemExit(main())

"""Fetch MNIST into data/, or another data set: `python mnist.py [--dataset NAME] [--data DIR]`."""

from common.data import main

raise SystemExit(main())

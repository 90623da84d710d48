"""``python -m mmcache``: the command line where the command ``mmcache`` is not on the path."""

from mmcache.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

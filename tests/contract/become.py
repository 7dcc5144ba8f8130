"""What a zygote of these tests is preloaded with: it becomes whatever its arguments say."""

import os
import sys

os.environ.pop("LC_CTYPE", None)  # Python's own doing, in a C locale; the tests look at what we are given
os.execvp(sys.argv[1], sys.argv[1:])

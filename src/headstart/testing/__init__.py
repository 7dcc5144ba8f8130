"""For people who build on Headstart: fakes of its seams, and the suite that a backend must pass.

Above it: nobody in the product (the benches borrow it). Below it: `backends.contract`.
Nothing here needs pytest.
"""

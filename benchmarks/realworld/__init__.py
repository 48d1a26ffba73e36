"""Mixed-precision bugs that were really fixed, and a runner that scores linters on them."""

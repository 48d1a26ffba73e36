"""Abstract domains: dtypes by precision mode, intervals, assumptions, and the values made of them."""

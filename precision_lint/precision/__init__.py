"""Which precision modes are in force where, and how sure a finding is."""

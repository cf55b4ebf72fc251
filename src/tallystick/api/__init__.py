"""What commands do, as functions: train, audit, verify, open, judge, and how a verdict is shown."""

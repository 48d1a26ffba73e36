"""What can go wrong at an operation: functions that look at operands' facts and emit events."""

"""What precision-lint is measured by: speed, and real bugs."""

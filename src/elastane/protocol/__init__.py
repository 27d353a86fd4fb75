"""What every worker must compute alike: pure functions over frozen values, and the member they add up to."""

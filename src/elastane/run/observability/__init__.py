"""Reading, verification, comparison and drawing of a run's files, without contact to live processes."""

"""The transitions that a `MemberMachine` tries after every event: functions over its state, by purpose."""

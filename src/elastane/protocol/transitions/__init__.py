"""What a `elastane.protocol.member.Member` tries after every event: functions over its state, by purpose."""

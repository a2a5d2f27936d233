"""What a memory refuses, watches and proves."""

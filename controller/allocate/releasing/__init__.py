"""What takes allocations back: after the last pod, after a refusal, and where two claims hold one device."""

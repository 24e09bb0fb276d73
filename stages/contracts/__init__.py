"""What every part agrees on: config base, plug-in look-up, outputs, history, events, errors. No torch."""

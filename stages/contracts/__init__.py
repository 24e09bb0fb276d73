"""What every part agrees on: config, plug-in look-up, outputs, history, events, errors, files. No torch."""

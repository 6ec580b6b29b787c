"""Where a result lives when it is too large for the conversation: refs, meta, retention, and the stores."""

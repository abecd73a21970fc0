"""What the pages share: settings and loading (state), charts, token chips. They draw; the core computes."""

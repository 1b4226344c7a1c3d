"use strict";
// Before anything is drawn: the colours that were chosen the last time. It is no module, so that it runs first.
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be turned off: then the system's colours are used.
}

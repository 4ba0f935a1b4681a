// Applies the stored theme before anything is drawn.
(() => {
  const theme = localStorage.getItem("lancehouse.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();

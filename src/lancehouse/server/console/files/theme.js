// Before anything is drawn: the theme that was chosen here, if one was.
(() => {
  const chosen = localStorage.getItem("lancehouse.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();

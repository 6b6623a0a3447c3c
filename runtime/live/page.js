// Keeps the page new. Every text in the fragments that come was escaped by the server.
"use strict";
const most = 100;
const link = document.getElementById("link");
const calls = document.getElementById("calls");
const events = new EventSource("events?after=" + document.body.dataset.last);
const show = (live) => {
  link.textContent = live ? "live" : "not live";
  link.classList.toggle("live", live);
};
events.addEventListener("open", () => show(true));
events.addEventListener("error", () => show(false));
events.addEventListener("state", (event) => {
  document.getElementById("state").innerHTML = event.data;
});
events.addEventListener("call", (event) => {
  const fragment = document.createElement("template");
  fragment.innerHTML = event.data;
  const call = fragment.content.firstElementChild;
  document.getElementById(call.id)?.remove();
  calls.prepend(call);
  while (calls.childElementCount > most) calls.lastElementChild.remove();
});

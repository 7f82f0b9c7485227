// What all of the page is made of: the states, words for numbers and times, elements.

/** The states as the reconciler numbers them: the later one counts more. */
export const STATES = ['Synced', 'Suspended', 'Pending', 'Held', 'Failed'];
export const [SYNCED, SUSPENDED, PENDING, HELD, FAILED] = STATES.keys();

/** Seconds as `kubectl` writes ages. */
export function age(seconds) {
  if (!(seconds >= 0)) return '0s';
  const units = [['y', 365 * 86400], ['d', 86400], ['h', 3600], ['m', 60]];
  const [unit, size] = units.find(([, size]) => seconds >= 2 * size) ?? ['s', 1];
  return `${Math.floor(seconds / size)}${unit}`;
}

export const number = (value) => value.toLocaleString('en');
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

export const $ = (id) => document.getElementById(id);

/** An element with a class and children; text becomes text. */
export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== undefined && child !== ''));
  return made;
}

export const sign = (state) => element('i', `sign ${STATES[state].toLowerCase()}`);

/** A word of a command line: the names in it are other people's text. */
const word = (text) => (/^[\w./:=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** A command with a button that copies it. */
export function command(...words) {
  const text = words.map(word).join(' ');
  const button = element('button', '', 'Copy');
  button.type = 'button';
  button.dataset.copy = text;
  button.setAttribute('aria-label', `Copy ${text}`);
  return element('div', 'command', element('pre', '', text), button);
}

document.addEventListener('click', async (event) => {
  const button = event.target.closest('button[data-copy]');
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    $('copied').textContent = `Copied: ${button.dataset.copy}`;
  } catch {
    // Browsers have a clipboard for https:// and localhost only.
    getSelection().selectAllChildren(button.previousElementSibling);
    $('copied').textContent = 'Selected: press Ctrl+C';
  }
  setTimeout(() => { $('copied').textContent = ''; }, 4000);
});

// Deletions that are held of rules that are gone. No column has them, so they stand above the grid until a person has decided.

import { HELD, $, command, count, element, sign } from './elements.js';

/** Shows all that there are; `namespace` is Mimeo's own. */
export function showHeld({ deletions, more }, namespace) {
  const items = deletions.map(({ rule, copies, places, why, nonce }) => element(
    'li', '',
    element('div', 'line', sign(HELD), element('span', 'text', `${rule} is gone`)),
    element('p', '', `${count(copies, 'copy', 'copies')} in ${places} would be deleted, but ${why}. They stay until the rule is back, or`
      + ' until you confirm the deletion:'),
    command('kubectl', 'mimeo', 'confirm', rule),
    element('p', '', 'or, without the plugin:'),
    command('kubectl', '-n', namespace, 'annotate', '--overwrite', 'configmap', 'mimeo-kinds', `mimeo.dev/confirm-deletion=${nonce}`),
  ));
  if (more) items.push(element('li', 'quiet', `and ${count(more, 'more rule')} like that`));
  $('held').hidden = !items.length;
  $('held').replaceChildren(...items);
}

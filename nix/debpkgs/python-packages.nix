# nixpkgs' names of python packages -> Debian's.
{
  attrs = "python3-attr";
  beautifulsoup4 = "python3-bs4";
  certifi = "python3-certifi";
  charset-normalizer = "python3-charset-normalizer";
  contourpy = "python3-contourpy";
  cycler = "python3-cycler";
  fonttools = "python3-fonttools";
  idna = "python3-idna";
  iniconfig = "python3-iniconfig";
  kiwisolver = "python3-kiwisolver";
  lxml = "python3-lxml";
  markdown-it-py = "python3-markdown-it";
  matplotlib = "python3-matplotlib";
  numpy = "python3-numpy";
  packaging = "python3-packaging";
  pandas = "python3-pandas";
  pillow = "python3-pil";
  pluggy = "python3-pluggy";
  pygments = "python3-pygments";
  pyparsing = "python3-pyparsing";
  pytest = "python3-pytest";
  python-dateutil = "python3-dateutil";
  pytz = "python3-pytz";
  pyyaml = "python3-yaml";
  requests = "python3-requests";
  rich = "python3-rich";
  scipy = "python3-scipy";
  setuptools = "python3-setuptools";
  six = "python3-six";
  soupsieve = "python3-soupsieve";
  tabulate = "python3-tabulate";
  urllib3 = "python3-urllib3";
}
